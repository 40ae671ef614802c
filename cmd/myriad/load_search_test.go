package main

import (
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/load"
)

// TestStepLine says why a rate did not keep the goal.
func TestStepLine(t *testing.T) {
	goal := load.Goal{Percentile: 99, Under: 10 * time.Millisecond}
	const ms = time.Millisecond
	for want, step := range map[string]load.Step{
		"p99 9ms, kept":                           {Latency: 9 * ms, Kept: true},
		"p99 11ms, too slow":                      {Latency: 11 * ms},
		"fell behind, 7 never sent or answered":   {Latency: 9 * ms, Unsent: 7},
		"the generator was late; the generator i": {Latency: 11 * ms, Late: 5 * ms, Limited: true},
	} {
		if got := stepLine(&step, goal); !strings.Contains(got, want) {
			t.Errorf("%q, want %q in it", got, want)
		}
	}
}

// TestWriteFound says what is above the rate that was found.
func TestWriteFound(t *testing.T) {
	steps := []load.Step{{Rate: 1000, Kept: true}, {Rate: 4000}, {Rate: 1050, Limited: true}, {Rate: 1050}}
	for want, found := range map[string]load.Found{
		"5% more did not":                    {Steps: steps},
		"at 5% more the generator was late":  {Steps: steps[:3]},
		"the search went no further":         {Steps: steps[:1], Most: true},
		"found 1000/s on 2 connections, 500": {Steps: steps},
	} {
		var out strings.Builder
		found.Rate, found.Result = 1000, &load.Result{Connected: 2}
		if err := writeFound(&out, &found); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%v, %q, want %q in it", err, out.String(), want)
		}
	}
}
