"""TaskManagers: slots, the task loop inside a slot, and the process around them."""
