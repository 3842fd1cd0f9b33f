"""Files in, one reading that can be saved and continued, and the page that a person sends to a colleague."""
