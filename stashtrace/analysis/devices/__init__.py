"""The work of each device, and the calls that requested it."""
