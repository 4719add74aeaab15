"""A network of devices that run by themselves: each has its data, battery and radio, and knows what it is told."""
