"""The stand-in; see `slime_standin`."""
