"""The document of a report as one HTML file, or as Markdown: its parts as blocks, the pictures, the style."""
