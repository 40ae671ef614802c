package lab

import (
	"slices"
	"testing"

	"github.com/myriad-go/myriad/doctor"
)

func TestDoctorSays(t *testing.T) {
	plan := doctor.Plan{Connections: 100_000}
	ports := doctor.Wall{Name: "ports", Present: "32768 60999", Holds: 28_231}
	orphans := doctor.Wall{Name: "tcp_max_orphans", Present: "131,072", Holds: 90_000, Soft: true}
	far := doctor.Wall{Name: "memory", Present: "20 GB", Holds: 100_000}
	for name, c := range map[string]struct {
		report doctor.Report
		want   []string
	}{
		"all is well": {doctor.Report{Plan: plan, Holds: 100_000, First: "memory", Walls: []doctor.Wall{far}},
			[]string{"this machine holds 100,000 connections"}},
		"two walls": {doctor.Report{Plan: plan, Holds: 28_231, First: "ports", Walls: []doctor.Wall{ports, orphans, far}}, []string{
			"this machine holds 28,231 connections of 100,000; the first wall is ports",
			"ports is 32768 60999: stops them at 28,231 connections",
			"tcp_max_orphans is 131,072: may hurt from 90,000 connections",
			"`myriad doctor -n 100000` says more",
		}},
	} {
		if got := doctorSays(&c.report); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
