package stall

import (
	"slices"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

func millis(inMs ...float64) (list []time.Duration) {
	for _, x := range inMs {
		list = append(list, time.Duration(x*float64(ms)))
	}
	return list
}

// TestTruth has cases computed by hand, in milliseconds. With stalls of 20 every 100, the server
// works in 20 to 100, 120 to 200 and so on.
func TestTruth(t *testing.T) {
	stalls := StallPlan{Stall: 20 * ms, Every: 100 * ms}
	with := func(capacity float64) StallPlan { p := stalls; p.Capacity = capacity; return p }
	for name, c := range map[string]struct {
		plan           StallPlan
		arrivals, want []time.Duration
	}{
		"nothing":                      {StallPlan{}, nil, nil},
		"no bound, no stalls":          {StallPlan{}, millis(0, 0, 7), millis(0, 0, 0)},
		"a queue":                      {StallPlan{Capacity: 100}, millis(0, 0, 5, 50, 55), millis(10, 20, 25, 10, 15)},
		"no bound, in a stall":         {stalls, millis(0, 5, 19, 20, 99, 100, 119, 120), millis(20, 15, 1, 0, 0, 20, 1, 0)},
		"begins in a stall":            {with(100), millis(0, 5, 10), millis(30, 35, 40)},
		"the stall's first moment":     {with(100), millis(100), millis(30)},
		"the stall's last moment":      {with(100), millis(119), millis(11)},
		"ends as a stall begins":       {with(100), millis(90), millis(10)},
		"begins as another has, there": {with(100), millis(90, 90), millis(10, 40)},
		"interrupted":                  {with(100), millis(95, 95), millis(30, 40)},
		"interrupted again and again":  {with(4), millis(20), millis(310)}, // 80 and 80 and 80 and 10
		"all of three times":           {with(1000. / 240), millis(20), millis(280)},
		"and a little":                 {with(1000. / 241), millis(20), millis(301)},
		"a queue over a stall":         {with(100), millis(80, 81, 82, 83, 200), millis(10, 19, 48, 57, 30)},
	} {
		if got := c.plan.PredictLatencies(c.arrivals); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v: lines that arrive at %v take %v, want %v", name, c.plan, c.arrivals, got, c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, good := range []StallPlan{
		{}, {Capacity: MinCapacity}, {Capacity: MaxCapacity}, {Stall: 1, Every: 2}, {Every: -1}, {Stall: MaxTime - 1, Every: MaxTime},
	} {
		if err := good.Check(); err != nil {
			t.Errorf("%+v: %v, want none", good, err)
		}
	}
	nan := 0.0
	for _, c := range []struct {
		plan StallPlan
		says string
	}{
		{StallPlan{Capacity: -1}, "capacity is -1 lines"},
		{StallPlan{Capacity: nan / nan}, "NaN"},
		{StallPlan{Capacity: MinCapacity / 2}, "expected 0"},
		{StallPlan{Capacity: MaxCapacity + 1}, "to 1000000 a second"},
		{StallPlan{Stall: -1}, "length is -1ns"},
		{StallPlan{Stall: MaxTime + 1, Every: 2 * MaxTime}, "expected 0s to 1h"},
		{StallPlan{Stall: 1}, "interval is 0s"},
		{StallPlan{Stall: ms, Every: ms}, "interval is 1ms with stalls of 1ms"},
		{StallPlan{Stall: ms, Every: MaxTime + 1}, "at most 1h"},
	} {
		if err := c.plan.Check(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: got %v, want an error with %q", c.plan, err, c.says)
		}
	}
}
