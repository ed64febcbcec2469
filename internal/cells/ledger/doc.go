// Package ledger owns what cells that are gone have cost, as it is stored: the sums by type, what namespaces have spent this month, and
// the entries of each day. It knows no cells: who ends one passes what it has cost, and stores the end of its record in the same
// transaction.
package ledger
