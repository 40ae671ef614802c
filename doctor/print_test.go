package doctor

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// requirementsOfMillion is what a million connections need, with each kind of setting.
func requirementsOfMillion() *requirements {
	need := func(name, from, to, why string) explained {
		return explained{Change{Sysctl, name, from, to}, why}
	}
	return &requirements{
		plan: Plan{Connections: 1_000_000, Side: Both, Unread: 4096},
		sysctls: []explained{
			need("fs.nr_open", "1048576", "1200000", "nofile: descriptors that a process may open"),
			need(rangeName, "32768 60999", "1024 65535", "ports: local ports of a source address"),
			need("net.core.somaxconn", "4096", "8192", "somaxconn: connections that wait to be accepted"),
			need("net.ipv4.tcp_mem", "1 2 3", "900000 1000000 1200000", "tcp_mem: pages of TCP's buffers"),
			need("net.netfilter.nf_conntrack_max", "262144", "1200000", "conntrack: connections that the firewall follows"),
		},
		nofile: 1_125_144, memlock: 64<<20 + 1, memory: 9_114_000_000, uring: true,
	}
}

func TestPrinted(t *testing.T) {
	idle := &requirements{plan: Plan{Connections: 100, Side: Server}}
	for _, c := range []struct{ file, text string }{
		{"sysctl.conf", requirementsOfMillion().sysctl()},
		{"systemd.conf", requirementsOfMillion().systemd()},
		{"docker.sh", requirementsOfMillion().docker()},
		{"kubernetes.yaml", requirementsOfMillion().kubernetes()},
		{"limits.conf", requirementsOfMillion().limits()},
		{"few.txt", idle.sysctl() + idle.systemd() + idle.docker() + idle.kubernetes() + idle.limits()},
	} {
		path := filepath.Join("testdata", "print", c.file)
		if *update {
			if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if c.text != string(want) {
			t.Errorf("%s is now:\n%s\nand was:\n%s", path, c.text, want)
		}
	}
}

func TestPrintRefuses(t *testing.T) {
	if err := Print(io.Discard, "nix", &Report{}); err == nil || err.Error() != `doctor: the format "nix"; expected one of sysctl, systemd, docker, kubernetes, limits` {
		t.Error(err)
	}
	if err := Print(io.Discard, "sysctl", &Report{}); err == nil || err.Error() != "doctor: a report without facts; expected one of Examine" {
		t.Error(err)
	}
}
