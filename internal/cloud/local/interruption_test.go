package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/test/tier"
)

func TestInterruptedMachineVanishes(t *testing.T) {
	tier.All(t)
	for _, stopped := range []bool{false, true} {
		t.Run(fmt.Sprintf("stopped=%t", stopped), func(t *testing.T) {
			cfg := testHost(t)
			c := open(t, cfg)
			i, other := launch(t, c, request("a")), launch(t, c, request("b"))
			if stopped {
				stop(t, c, i.ID)
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			notices := make(chan cloud.Interruption, 10)
			ended := make(chan error, 1)
			go func() {
				ended <- c.Interruptions(ctx, cloud.Listener{Notify: func(n cloud.Interruption) { notices <- n }})
			}()
			at := time.Now().Add(2 * time.Second)
			if err := host.Interrupt(cfg.Config, i.ID, at); err != nil {
				t.Fatal(err)
			}
			if n := <-notices; n.InstanceID != i.ID || !n.At.Equal(at) || n.Reason == "" {
				t.Errorf("notice %+v, want %s at %s", n, i.ID, at)
			}
			within(t, "interrupted machine vanishes", func() error {
				if l := list(t, c); len(l) != 1 || l[0] != other.ID {
					return fmt.Errorf("listed: %q", l)
				}
				return nil
			})
			if early := time.Until(at); early > 0 {
				t.Errorf("it was taken %s early", early)
			}
			within(t, "its file goes", func() error {
				if _, err := os.Stat(filepath.Join(cfg.StateDir, "interruptions", i.ID)); !errors.Is(err, os.ErrNotExist) {
					return fmt.Errorf("stat: %v", err)
				}
				return nil
			})
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("the watch ended with %v", err)
			}
			if len(notices) > 0 {
				t.Errorf("noticed again: %+v", <-notices)
			}
		})
	}
}
