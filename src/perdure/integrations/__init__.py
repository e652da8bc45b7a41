"""Optional integrations with other libraries."""
