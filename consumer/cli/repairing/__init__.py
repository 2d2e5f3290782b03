"""Commands that repair: findings, quarantine, dead runs, replay, an operator's word, who may see the pages, the schema,
rebuild, archives."""
