"""Sources whose position an object of the user's own keeps."""
