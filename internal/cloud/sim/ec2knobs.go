package sim

import "time"

// EC2RateLimits returns about what an AWS account has in a Region by default. Both
// buckets are refilled once a second, and a call that finds too few tokens is
// answered RequestLimitExceeded. Source: AWS, "Request throttling for the Amazon
// EC2 API" (EC2 developer guide), for the resource buckets of RunInstances (1000
// and 2 a second) and TerminateInstances (1000 and 20) and for Describe calls with
// a filter (100 and 20), CreateTags (100 and 10) and other calls that change something
// (50 and 5). The resource bucket of StopInstances is unconfirmed.
func EC2RateLimits() map[Kind]RateLimit {
	return map[Kind]RateLimit{
		KindLaunch:     {Requests: Bucket{Capacity: 5, Refill: 2}, Resources: Bucket{Capacity: 1000, Refill: 2}},
		KindStart:      {Requests: Bucket{Capacity: 5, Refill: 2}, Resources: Bucket{Capacity: 1000, Refill: 2}},
		KindTerminate:  {Requests: Bucket{Capacity: 100, Refill: 5}, Resources: Bucket{Capacity: 1000, Refill: 20}},
		KindStop:       {Requests: Bucket{Capacity: 50, Refill: 5}, Resources: Bucket{Capacity: 1000, Refill: 20}},
		KindTag:        {Requests: Bucket{Capacity: 100, Refill: 10}},
		KindCreateDisk: {Requests: Bucket{Capacity: 50, Refill: 5}},
		KindDeleteDisk: {Requests: Bucket{Capacity: 50, Refill: 5}},
		KindAttachDisk: {Requests: Bucket{Capacity: 50, Refill: 5}},
		KindDetachDisk: {Requests: Bucket{Capacity: 50, Refill: 5}},
		KindRoute:      {Requests: Bucket{Capacity: 50, Refill: 5}},
		KindUnroute:    {Requests: Bucket{Capacity: 50, Refill: 5}},
		KindGrowDisk:   {Requests: Bucket{Capacity: 50, Refill: 5}},
		KindListDisks:  {Requests: Bucket{Capacity: 100, Refill: 20}},
		KindList:       {Requests: Bucket{Capacity: 100, Refill: 20}},
		KindDescribe:   {Requests: Bucket{Capacity: 100, Refill: 20}},
		KindCatalogue:  {Requests: Bucket{Capacity: 100, Refill: 20}},

		KindInterruptions: {Requests: Bucket{Capacity: 100, Refill: 20}},
		KindListOwned:     {Requests: Bucket{Capacity: 100, Refill: 20}},
		KindDeleteOwned:   {Requests: Bucket{Capacity: 50, Refill: 5}},
	}
}

// EC2 returns knobs that are like EC2 on an ordinary day: its documented rate
// limits, and delays of the size that its users see. The delays are plausible,
// not measured: AWS promises none.
func EC2() Knobs {
	return Knobs{
		Pending: Distribution{
			Median:     6 * time.Second,
			Spread:     1.4,
			Tail:       0.01,
			TailFactor: 5,
		},
		Termination: Distribution{
			Median:     30 * time.Second,
			Spread:     1.5,
			Tail:       0.02,
			TailFactor: 10,
		},
		Stopping: Distribution{
			Median:     30 * time.Second,
			Spread:     1.5,
			Tail:       0.02,
			TailFactor: 10,
		},
		BootTimes: []BootTime{
			{Types: "mac*", Distribution: Distribution{Median: 10 * time.Minute, Spread: 1.3}},
			{Types: "*.metal*", Distribution: Distribution{Median: 8 * time.Minute, Spread: 1.3}},
			{Distribution: Distribution{
				Median:     14 * time.Second,
				Spread:     1.3,
				Tail:       0.01,
				TailFactor: 6,
			}, Never: 0.0005},
		},
		Latency: map[Kind]Distribution{
			KindLaunch: {Median: 1500 * time.Millisecond, Spread: 1.5, Tail: 0.01, TailFactor: 5},
			AnyKind:    {Median: 300 * time.Millisecond, Spread: 1.5, Tail: 0.01, TailFactor: 5},
		},
		ListLag: Distribution{
			Median:     500 * time.Millisecond,
			Spread:     2,
			Tail:       0.01,
			TailFactor: 10,
		},
		UnknownFor: Distribution{
			Median:     200 * time.Millisecond,
			Spread:     2,
			Tail:       0.01,
			TailFactor: 10,
		},
		RateLimits:            EC2RateLimits(),
		StoppedKeepsAddresses: true,
	}
}
