"""Train networks of many shapes, and fit what their gradients cost."""
