"""See `slime_standin`."""
