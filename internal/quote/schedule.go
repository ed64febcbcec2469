package quote

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// from is when counting begins: any year has nearly as many runs.
var from = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// mostRuns is how many runs of a year are counted: more than one a minute there are none.
const mostRuns = 366 * 24 * 60

// runsPerMonth is how often a schedule falls due in a month, over a year.
func runsPerMonth(schedule, zone string) (float64, error) {
	if strings.Contains(schedule, "TZ") {
		return 0, errors.New("cannot use TZ or CRON_TZ in schedule, use timeZone field instead")
	}
	where := time.UTC
	if zone != "" {
		var err error
		if where, err = time.LoadLocation(zone); err != nil {
			return 0, fmt.Errorf("unknown time zone %q", zone)
		}
	}
	s, err := cron.ParseStandard(schedule)
	if err != nil {
		return 0, err
	}
	n := 0
	for t := s.Next(from.In(where).Add(-time.Second)); !t.IsZero() && t.Before(from.AddDate(1, 0, 0)) && n < mostRuns; t = s.Next(t) {
		n++
	}
	return float64(n) / 12, nil
}
