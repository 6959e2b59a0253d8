"""Read files of other tools into event tables. One file or folder per format."""
