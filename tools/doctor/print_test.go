package doctor

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

var update = flag.Bool("update", false, "write the golden files anew")

// checkGolden compares text with a file of testdata.
func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		testkit.RequireNoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	if want, err := os.ReadFile(path); err != nil || got != string(want) {
		t.Errorf("%s is now:\n%s\nand was, %v:\n%s", path, got, err, want)
	}
}

func TestPrinted(t *testing.T) {
	setting := func(name, from, to, why string) requiredSysctl {
		return requiredSysctl{Change{Sysctl, name, from, to}, why}
	}
	for name, l := range map[string]*requirements{
		"few": {Plan: Plan{Connections: 100, Side: Server}},
		"million": {
			Plan: Plan{Connections: 1_000_000, Side: Both, Unread: 4096},
			Sysctls: []requiredSysctl{ // each kind
				setting("fs.nr_open", "1048576", "1200000", "nofile: descriptors that a process may open"),
				setting(rangeName, "32768 60999", "1024 65535", "ports: local ports of a source address"),
				setting("net.core.somaxconn", "4096", "8192", "somaxconn: connections that wait to be accepted"),
				setting("net.ipv4.tcp_mem", "1 2 3", "900000 1000000 1200000", "tcp_mem: pages of TCP's buffers"),
				setting("net.netfilter.nf_conntrack_max", "262144", "1200000", "conntrack: connections that the firewall follows"),
			},
			Nofile: 1_125_144, Memlock: 64<<20 + 1, MiB: 8692, Uring: true,
		},
	} {
		var got bytes.Buffer
		for _, format := range Formats {
			testkit.RequireNoError(t, l.writeTemplate(&got, format))
		}
		checkGolden(t, "print-"+name, got.String())
	}
}

func TestPrintRefuses(t *testing.T) {
	for format, want := range map[string]string{
		"nix":    `doctor: format is "nix"; expected one of sysctl, systemd, docker, kubernetes, limits`,
		"sysctl": "doctor: the report has no facts; expected a report of Examine",
	} {
		if err := WriteSettings(io.Discard, format, &Report{}); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %q", format, err, want)
		}
	}
}
