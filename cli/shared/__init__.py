"""What all commands share: output, endings, options."""
