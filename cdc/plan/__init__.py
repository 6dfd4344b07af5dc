"""`cdc plan`: what a change of tables or configuration will do to the stores; and the data contracts that their readers rely on."""
