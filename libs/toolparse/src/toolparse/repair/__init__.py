"""What `lenient` mode makes of a faulty call."""
