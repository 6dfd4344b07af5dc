"""The values that flow through the house: positions, tables, batches of changes. Pure; imports no other room."""
