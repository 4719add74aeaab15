"""What measures a device's battery, harvest and channel."""
