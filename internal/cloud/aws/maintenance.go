package aws

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

const (
	// maintenanceLead is how long before its maintenance an instance counts as taken back. EC2 mostly
	// says so days before, in which a pod may well run to its end.
	maintenanceLead = time.Hour
	// blindTold is after how many looks in a row that fail this is told again: an hour's.
	blindTold = 12
	// overMark begins the description of what has been carried out, or was called off (EC2 API
	// reference, "InstanceStatusEvent").
	overMark = "["
)

// maintenanceCodes are those of what is scheduled by which a cell's machine ends or starts anew
// (EC2 API reference, "InstanceStatusEvent"), as a filter wants them.
func maintenanceCodes() (all []string) {
	for _, code := range types.EventCode("").Values() {
		all = append(all, string(code))
	}
	return all
}

// lookAtMaintenance tells of instances that EC2 is about to stop, to retire or to reboot. It is
// worth no more than a word where it fails: most fleets never see one.
func (w *watch) lookAtMaintenance(ctx, look context.Context) {
	e := w.ec2
	began := e.cfg.Clock.Now()
	var now []cloud.Interruption
	err := w.l.Look(look, func(ctx context.Context) (err error) {
		now, err = e.maintained(ctx)
		return err
	})
	if err != nil {
		if w.blind++; w.blind%blindTold == 1 && ctx.Err() == nil {
			e.cfg.Log.Warn("look for scheduled maintenance; Kip asks again", "after", e.cfg.MaintenanceEvery, "failed", w.blind, "err", err)
		}
		return
	}
	w.blind = 0
	soon := map[string]time.Time{}
	for _, i := range soonestOf(now) {
		if i.At.Sub(began) > maintenanceLead || w.l.Mine != nil && !w.l.Mine(i.InstanceID) {
			continue
		}
		soon[i.InstanceID] = i.At
		if was, told := w.soon[i.InstanceID]; !told || !was.Equal(i.At) { // it may be put off
			w.l.Notify(i)
		}
	}
	for id := range w.soon {
		if _, still := soon[id]; !still {
			w.l.Notify(cloud.Interruption{
				InstanceID: id,
				Planned:    true,
				CalledOff:  true,
				Reason:     "called off",
			})
		}
	}
	w.soon = soon
}

// soonestOf leaves each instance the notice that comes first: several things may be scheduled for one.
func soonestOf(notices []cloud.Interruption) []cloud.Interruption {
	slices.SortFunc(notices, func(a, b cloud.Interruption) int {
		return cmp.Or(cmp.Compare(a.InstanceID, b.InstanceID), a.At.Compare(b.At))
	})
	return slices.CompactFunc(notices, func(a, b cloud.Interruption) bool { return a.InstanceID == b.InstanceID })
}

// maintained are the instances for which EC2 has scheduled what ends them or starts them anew, of
// the whole account: no filter of this call knows tags.
func (s *interruptions) maintained(ctx context.Context) (all []cloud.Interruption, err error) {
	pages := ec2.NewDescribeInstanceStatusPaginator(s.api, &ec2.DescribeInstanceStatusInput{
		Filters:    []types.Filter{filter("event.code", maintenanceCodes()...)},
		MaxResults: aws.Int32(pageSize),
	})
	err = eachPage(ctx, pages, func(page *ec2.DescribeInstanceStatusOutput) {
		for _, status := range page.InstanceStatuses {
			for _, e := range status.Events {
				description := aws.ToString(e.Description)
				if e.NotBefore == nil || strings.HasPrefix(description, overMark) {
					continue
				}
				all = append(all, cloud.Interruption{
					InstanceID: aws.ToString(status.InstanceId),
					At:         *e.NotBefore,
					Reason:     string(e.Code) + ": " + description[:min(len(description), maxMessage)],
					Planned:    true,
				})
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}
