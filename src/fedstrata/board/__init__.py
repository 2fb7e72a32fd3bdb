"""The live board: runs below a folder, listed and drawn while they go on, on a page that only reads."""
