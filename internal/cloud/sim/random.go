package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Distribution is how long something takes. The zero value is no time at all;
// a Median alone is always that long.
type Distribution struct {
	Median time.Duration
	// Spread is how wide the values lie around the median (log-normal): about
	// two thirds are between Median/Spread and Median*Spread. 0 and 1 are no
	// spread.
	Spread float64
	// Tail is the share (0 to 1) of slow ones, which take TailFactor (≥ 1) times
	// as long.
	Tail       float64
	TailFactor float64
}

// longest bounds what is drawn, far from an overflow of times that are added up.
const longest = 365 * 24 * time.Hour

func (d Distribution) draw(r *rand.Rand) time.Duration {
	x := float64(d.Median)
	if d.Spread > 1 {
		x *= math.Pow(d.Spread, r.NormFloat64())
	}
	if happens(r, d.Tail) {
		x *= d.TailFactor
	}
	return time.Duration(min(x, float64(longest)))
}

func (d Distribution) validate(field string) error {
	switch {
	case d.Median < 0 || d.Median > longest:
		return fmt.Errorf("%s.Median is %v: want 0 to %v", field, d.Median, longest)
	case d.Spread != 0 && !(d.Spread >= 1):
		return fmt.Errorf("%s.Spread is %v: want 1 or more, or 0 for none", field, d.Spread)
	case d.Tail > 0 && !(d.TailFactor >= 1):
		return fmt.Errorf("%s.TailFactor is %v: want 1 or more", field, d.TailFactor)
	}
	return share(field+".Tail", d.Tail)
}

func share(field string, p float64) error {
	if !(p >= 0 && p <= 1) {
		return fmt.Errorf("%s is %v: want a share from 0 to 1", field, p)
	}
	return nil
}

func happens(r *rand.Rand, p float64) bool { return p > 0 && r.Float64() < p }

// exponential draws the time until something that happens once in mean.
func exponential(r *rand.Rand, mean time.Duration) time.Duration {
	return time.Duration(min(r.ExpFloat64()*float64(mean), float64(longest)))
}
