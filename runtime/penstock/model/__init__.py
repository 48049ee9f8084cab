"""Words that every layer shares: ids, elements, operator specs, messages, errors. Data, no behaviour."""
