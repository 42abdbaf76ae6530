"""What several commands share: options, arguments, output, jobs with progress."""
