package procfs

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestParseSysctl(t *testing.T) {
	for in, want := range map[string]string{
		"4096\n": "4096", "4096\t131072\t33554432\n": "4096 131072 33554432", "\n": "", "": "", "a-b,c\n": "a-b,c",
	} {
		if got := parseSysctl([]byte(in)); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func FuzzParseSysctl(f *testing.F) {
	f.Add([]byte("4096\t131072\t33554432\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got := parseSysctl(b)
		if again := parseSysctl([]byte(got)); again != got || strings.Contains(got, "  ") {
			t.Errorf("%q: got %q, and of that %q", b, got, again)
		}
	})
}

// TestReadSysctls compares with the command sysctl, where there is one.
func TestReadSysctls(t *testing.T) {
	onlyLinux(t)
	const there, several, fixed, none = "net.core.somaxconn", "net.ipv4.tcp_rmem", "kernel.osrelease", "net.core.none"
	s := ReadSysctls([]string{there, several, fixed, none})
	if len(s.Values) != 3 || len(s.Failed) != 0 {
		t.Fatalf("got %+v, want three values", s)
	}
	if !slices.Contains(s.ReadOnly, fixed) {
		t.Errorf("read-only are %q, want %s among them", s.ReadOnly, fixed)
	}
	if os.Geteuid() == 0 && slices.Contains(s.ReadOnly, several) != (os.WriteFile(SysctlPath(several), []byte(s.Values[several]), 0) != nil) {
		t.Errorf("read-only are %q, which writing does not agree with", s.ReadOnly)
	}
	command, err := exec.LookPath("sysctl")
	if err != nil {
		return
	}
	for name, value := range s.Values {
		out, err := exec.Command(command, "-n", name).Output()
		if got := strings.Join(strings.Fields(string(out)), " "); err != nil || got != value {
			t.Errorf("%s is %q, the command says %q, %v", name, value, got, err)
		}
	}
}
