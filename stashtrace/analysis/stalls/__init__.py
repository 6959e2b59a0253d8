"""Where each nanosecond of a step went: layers of causes, painted by priority."""
