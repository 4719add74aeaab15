"""What is learned: datasets, how they are split over devices, models and their sizes."""
