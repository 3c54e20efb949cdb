"""The most used families in one compiled loop each, for text without a fault."""
