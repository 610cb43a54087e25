"""What several tests share: models, data, searches, references."""
