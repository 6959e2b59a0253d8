"""Starting traced commands and looking at the machine they run on."""
