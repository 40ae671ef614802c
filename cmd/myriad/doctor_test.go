package main

import (
	"strings"
	"testing"
)

func TestDoctorWrongUse(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--fix", "-n is missing; expected for how many connections the machine is to be made ready, such as -n 100k"},
		{"--print sysctl", "-n is missing; expected for how many connections the machine is to be made ready, such as -n 100k"},
		{"--yes -n 10", "--yes is given without --fix; expected both"},
		{"-n 10 --fix --json", "--fix and --json are given; expected one of the two"},
		{"-n 10 --print sysctl --fix", "--fix and --print are given; expected one of the two"},
		{"-n 10 --print sysctl --json", "--json and --print are given; expected one of the two"},
		{"-n 10 --print nix", `--print is "nix"; expected sysctl or systemd or docker or kubernetes or limits`},
		{"-n 0", `--connections is "0"; expected a whole number above 0, such as 500, 20k or 1.5M`},
		{"-n 10 --side middle", `--side is "middle"; expected server or client or both`},
		{"-n 10 --target localhost:1", `--target is "localhost:1"; expected an IP address and a port, such as 10.0.0.7:9000`},
		{"-n 10 --src here", `--src is "here"; expected an IP address of this machine`},
		{"-n 10G", "Plan.Connections is 10,000,000,000; expected 1 to "},
		{"-n 10 --model fast", `Plan.Model is "fast"; expected `},
		{"-n 10 now", `unexpected argument "now"; expected myriad doctor [flags]`},
	} {
		got := invoke(t, append([]string{"doctor"}, strings.Fields(c.args)...)...)
		if got.code != 2 || !strings.HasPrefix(got.stderr, "myriad: "+c.want) || got.stdout != "" {
			t.Errorf("%s: %+v; expected 2 and %q", c.args, got, c.want)
		}
	}
}
