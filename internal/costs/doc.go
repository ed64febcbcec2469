// Package costs owns the form in which Kip keeps what its cells have cost: entries by
// whom the money was spent for and by day, in bounded bytes. It computes and does nothing
// else: package cells stores them.
package costs
