"""What a planner can have done; every module here but `tool` holds one."""
