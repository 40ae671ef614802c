package procfs

import (
	"fmt"
	"os"
	"testing"
)

const rights = "Name:\tUid: 9\nUid:\t1000\t0\t0\t0\nCapPrm:\tff\nCapEff:\t0000000001201000\nSeccomp:\t2\nSeccomp_filters:\t7\n"

func TestParseRights(t *testing.T) {
	got, err := parseRights([]byte(rights))
	want := Rights{User: 1000, Capabilities: 1<<CapNetAdmin | 1<<CapSysAdmin | 1<<CapSysResource, Seccomp: 2}
	if err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if !got.Has(CapNetAdmin, CapSysAdmin, CapSysResource) || got.Has(CapSysAdmin, 0) || !got.Has() {
		t.Errorf("has CAP_NET_ADMIN, CAP_SYS_ADMIN and CAP_SYS_RESOURCE, and not CAP_CHOWN: %+v", got)
	}
	if got, err := parseRights([]byte("Name: a\nUid: 0 0 0 0\nCapEff: 0\n")); err != nil || got != (Rights{}) {
		t.Errorf("without seccomp: got %+v, %v", got, err)
	}
	for _, in := range []string{
		"", "Name: a\nUid: 1 1\n", "Name: a\nCapEff: 0\n", "Uid: 1\nCapEff: 0\n", // the last one's first line is a name
		"Name: a\nUid: -1\nCapEff: 0\n", "Name: a\nUid: 0\nCapEff: x\n", "Name: a\nUid: 0\nCapEff: 0\nSeccomp: no\n",
	} {
		if got, err := parseRights([]byte(in)); err == nil {
			t.Errorf("%q: got %+v, want an error", in, got)
		}
	}
}

func FuzzParseRights(f *testing.F) {
	f.Add(uint32(1000), uint64(1<<CapSysAdmin), []byte(rights))
	f.Fuzz(func(t *testing.T, user uint32, capabilities uint64, raw []byte) {
		if r, err := parseRights(raw); err == nil && (r.Seccomp < 0 || r.Seccomp > 255) {
			t.Errorf("%q: got %+v", raw, r)
		}
		in := fmt.Appendf(nil, "Name:\ta\nUid:\t%d\t9\t9\t9\nCapEff:\t%016x\n", user, capabilities)
		if r, err := parseRights(in); err != nil || r != (Rights{User: user, Capabilities: capabilities}) {
			t.Errorf("%q: got %+v, %v", in, r, err)
		}
	})
}

func TestReadRights(t *testing.T) {
	onlyLinux(t)
	r, err := ReadRights(os.Getpid())
	if err != nil || int(r.User) != os.Getuid() {
		t.Errorf("got %+v, %v; want user %d", r, err, os.Getuid())
	}
	if r.HasMachine() != r.First || r.First && r.HasMachine(CapIPCLock) != r.Has(CapIPCLock) {
		t.Errorf("what holds for the machine is not what holds in its first namespace: %+v", r)
	}
	if inner := (Rights{Capabilities: 1 << CapSysAdmin}); inner.HasMachine(CapSysAdmin) || !inner.Has(CapSysAdmin) {
		t.Errorf("in another user namespace: %+v has CAP_SYS_ADMIN for the machine", inner)
	}
}

func TestMapsAll(t *testing.T) {
	for in, want := range map[string]bool{
		"         0          0 4294967295\n": true, "": false, "0 1000 1\n": false, "0 0 65536\n": false,
		"0 1000 1\n1 100000 65536\n": false, "0 0 4294967295\n1 1 1\n": false,
	} {
		if got := mapsAll([]byte(in)); got != want {
			t.Errorf("%q: got %v, want %v", in, got, want)
		}
	}
}
