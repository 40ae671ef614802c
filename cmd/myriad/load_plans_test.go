package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/load"
)

func TestParseRatePlan(t *testing.T) {
	ms := time.Millisecond
	for text, want := range map[string]ratePlan{
		"10":           {from: 10},
		"0.5":          {from: 0.5},
		"50k":          {from: 50_000},
		"1k:100k":      {from: 1000, to: 100_000},
		"100k:1k":      {from: 100_000, to: 1000},
		"@10ms":        {goal: goal{10 * ms, 99}},
		"@0.5":         {goal: goal{500 * ms, 99}},
		"@10ms,p99.9":  {goal: goal{10 * ms, 99.9}},
		"@10ms,p50":    {goal: goal{10 * ms, 50}},
		"@10ms,p0.001": {goal: goal{10 * ms, 0.001}},
	} {
		if got, err := parseRatePlan(text); got != want || err != nil {
			t.Errorf("%q: got %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "0", "-1", "fast", "1k:", ":1k", "1k:0", "1k:2k:3k", "@", "@0s", "@-1s", "@soon", "@10ms,", "@10ms,99", "@10ms,p", "@10ms,p0", "@10ms,p100", "@10ms,p101", "@10ms,p99,p50",
	} {
		if got, err := parseRatePlan(text); err != wantRate || got != (ratePlan{}) {
			t.Errorf("%q: got %+v, %v; want the error %q", text, got, err, wantRate)
		}
	}
}

func TestParseRamp(t *testing.T) {
	for text, want := range map[string]load.Ramp{
		"60s":         {Over: time.Minute},
		"0:100k:60s":  {To: 100_000, Over: time.Minute},
		"10:10:1":     {From: 10, To: 10, Over: time.Second},
		"1k:1M:100ms": {From: 1000, To: 1_000_000, Over: 100 * time.Millisecond},
	} {
		if got, err := parseRamp(text); got != want || err != nil {
			t.Errorf("%q: got %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0s", "0:100k", "0:0:60s", "2:1:60s", "0:1:0s", "-1:1:1s", "0:1:1s:1", "0:many:60s", "::60s"} {
		if got, err := parseRamp(text); err != wantRamp {
			t.Errorf("%q: got %+v, %v; want the error %q", text, got, err, wantRamp)
		}
	}
}

func TestParseSine(t *testing.T) {
	for text, want := range map[string]sine{"0.5:10s": {0.5, 10 * time.Second}, "1:100ms": {1, 100 * time.Millisecond}} {
		if got, err := parseSine(text); got != want || err != nil {
			t.Errorf("%q: got %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0.5", "0:1s", "1.1:10s", "-0.5:10s", "0.5:0s", "0.5:", ":10s", "0.5:10s:1"} {
		if got, err := parseSine(text); err != wantSine {
			t.Errorf("%q: got %+v, %v; want the error %q", text, got, err, wantSine)
		}
	}
}

func TestParsePercents(t *testing.T) {
	if got, err := parsePercents("50, 95,99.5,100"); !slices.Equal(got, []float64{50, 95, 99.5, 100}) || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	for _, text := range []string{"", "0", "101", "p99", "99,", "nan", "1e1", strings.Repeat("99,", maxPercents) + "99"} {
		if got, err := parsePercents(text); err == nil {
			t.Errorf("%.10q: got %v; want an error", text, got)
		}
	}
	if got, err := parsePercents(strings.Repeat("99,", maxPercents-1) + "99"); len(got) != maxPercents || err != nil {
		t.Errorf("as many as there can be: got %d, %v", len(got), err)
	}
}

// Whatever a parser takes is a plan that makes sense.
func FuzzPlans(f *testing.F) {
	for _, seed := range []string{"50k", "1k:100k", "@10ms", "@10ms,p99.9", "0:100k:60s", "60s", "0.5:10s", "95,99,99.5", "::", "@,p", "1:2:3:4"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := parseRatePlan(text); err == nil {
			g := p.goal
			searched := g.under > 0 && g.percent > 0 && g.percent < 100 && p.from == 0 && p.to == 0
			if !searched && (p.from <= 0 || p.to < 0 || g != goal{}) {
				t.Errorf("rate %q: got %+v", text, p)
			}
		}
		if r, err := parseRamp(text); err == nil && (r.From < 0 || r.From > r.To || r.Over <= 0) {
			t.Errorf("ramp %q: got %+v", text, r)
		}
		if s, err := parseSine(text); err == nil && (s.swing <= 0 || s.swing > 1 || s.period <= 0) {
			t.Errorf("sine %q: got %+v", text, s)
		}
		if list, err := parsePercents(text); err == nil && (len(list) == 0 || len(list) > maxPercents || slices.Max(list) > 100 || slices.Min(list) <= 0) {
			t.Errorf("percentiles %q: got %v", text, list)
		}
	})
}
