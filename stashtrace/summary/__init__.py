"""Write findings as sentences with their evidence. Text out; nothing here prints or looks at a terminal."""
