package store

import (
	"fmt"
	"testing"
)

// BenchmarkApply writes a thousand new records of a kilobyte in transactions of
// n: the store's part in a burst of pods.
func BenchmarkApply(b *testing.B) {
	for _, n := range []int{1, 10, MaxChanges} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s, err := OpenEmbedded(b.Context(), b.TempDir(), "")
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			value := item{fmt.Sprintf("%01000d", 0)}
			for i := 0; b.Loop(); i++ {
				for j := 0; j < 1000; j += n {
					changes := make([]Change, n)
					for k := range changes {
						changes[k] = Change{Key: fmt.Sprintf("cells/%d-%d", i, j+k), Value: value}
					}
					if _, err := s.Apply(b.Context(), changes...); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
