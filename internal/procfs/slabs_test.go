package procfs

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

const slabinfo = `slabinfo - version: 2.1
# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables <limit> <batchcount> <sharedfactor> : slabdata <active_slabs> <num_slabs> <sharedavail>
TCP                 6450   6461   2368   13    8 : tunables    0    0    0 : slabdata    497    497      0
eventpoll_epi      13216  13216    128   32    1 : tunables    0    0    0 : slabdata    413    413      0
`

func TestParseSlabs(t *testing.T) {
	got, err := parseSlabs([]byte(slabinfo), 4096)
	want := map[string]Slab{
		"TCP":           {"TCP", 6450, 6461, 2368, 8 * 4096. / 13, 497 * 8 * 4096},
		"eventpoll_epi": {"eventpoll_epi", 13216, 13216, 128, 128, 413 * 4096},
	}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	row := strings.Split(slabinfo, "\n")[2]
	for name, in := range map[string]string{
		"empty":        "",
		"heading only": "slabinfo - version: 2.1\n# name\n",
		"short":        "TCP 1 2 3 4 5\n",
		"no number":    strings.Replace(row, "6450", "many", 1),
		"negative":     strings.Replace(row, "6450", "-1", 1),
		"no objects":   strings.Replace(row, " 13 ", " 0 ", 1),
		"overflow":     strings.Replace(row, "497      0", "9223372036854775807 0", 1),
		"huge":         strings.Replace(row, " 8 :", " 9223372036854775807 :", 1),
	} {
		if got, err := parseSlabs([]byte(in), 4096); err == nil {
			t.Errorf("%s: got %+v, want an error", name, got)
		}
	}
	var many strings.Builder
	for i := range maxSlabs + 1 {
		fmt.Fprintf(&many, "c%d%s\n", i, strings.TrimPrefix(row, "TCP"))
	}
	if got, err := parseSlabs([]byte(many.String()), 4096); err == nil || !strings.Contains(err.Error(), "more than 16384 caches") {
		t.Errorf("too many: got %d caches, %v", len(got), err)
	}
}

func TestMergedSlabs(t *testing.T) {
	root := tree(t, map[string]string{"proc/slabinfo": slabinfo, "sys/kernel/slab/TCP/order": "3\n"})
	for name, target := range map[string]string{
		"eventpoll_epi": ":A-0000128", "bind_bucket": ":A-0000128", "hidden": ":0000064", // of the last nothing is shown
	} {
		if err := os.Symlink(target, filepath.Join(root, slabDir, name)); err != nil {
			t.Fatal(err)
		}
	}
	s, err := readSlabs(root)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"bind_bucket": "eventpoll_epi"}; !maps.Equal(s.Merged, want) {
		t.Errorf("merged: got %v, want %v", s.Merged, want)
	}
	for name, shown := range map[string]string{"TCP": "TCP", "eventpoll_epi": "eventpoll_epi", "bind_bucket": "eventpoll_epi", "hidden": "", "none": ""} {
		if got, ok := s.Find(name); got.Name != shown || ok != (shown != "") {
			t.Errorf("%s: got %+v, %v; want %q", name, got, ok, shown)
		}
	}
}

// TestReadSlabs opens sockets, which the cache of TCP's has to show.
func TestReadSlabs(t *testing.T) {
	onlyLinux(t)
	const sockets = 500
	for range sockets {
		listenTCP(t, "127.0.0.1:0")
	}
	s, err := ReadSlabs()
	if os.IsPermission(err) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	tcp, ok := s.Find("TCP")
	if !ok || tcp.Active < sockets || tcp.Objects < tcp.Active || tcp.Size < 1000 || tcp.Each < float64(tcp.Size) || tcp.Bytes < tcp.Objects*tcp.Size {
		t.Errorf("TCP with %d sockets open: got %+v, %v", sockets, tcp, ok)
	}
	for _, name := range []string{"sock_inode_cache", "dentry", "filp"} {
		if slab, ok := s.Find(name); !ok || slab.Active < sockets {
			t.Errorf("%s with %d sockets open: got %+v, %v", name, sockets, slab, ok)
		}
	}
}

func FuzzParseSlabs(f *testing.F) {
	f.Add(uint32(6461), uint16(2368), []byte(slabinfo))
	f.Add(uint32(0), uint16(8), []byte("TCP 0 0 1 1 9223372036854775807 : tunables 0 0 0 : slabdata 0 3 0"))
	f.Fuzz(func(t *testing.T, objects uint32, size uint16, raw []byte) {
		caches, err := parseSlabs(raw, 4096)
		for name, s := range caches {
			if err != nil || min(s.Active, s.Objects, s.Size, s.Bytes) < 0 || s.Each <= 0 || name != s.Name {
				t.Errorf("%q: %+v, %v", raw, s, err)
			}
		}
		in := fmt.Sprintf("a %d %d %d 2 1 : tunables 0 0 0 : slabdata 3 3 0\n", objects, objects, size)
		got, err := parseSlabs([]byte(in), 4096)
		if want := (Slab{"a", int64(objects), int64(objects), int64(size), 2048, 3 * 4096}); err != nil || got["a"] != want {
			t.Errorf("%q: got %+v, %v, want %+v", in, got, err, want)
		}
	})
}

func BenchmarkReadSlabs(b *testing.B) {
	if runtime.GOOS != "linux" {
		b.Skip("no /proc")
	}
	for b.Loop() {
		if _, err := ReadSlabs(); err != nil && !os.IsPermission(err) {
			b.Fatal(err)
		}
	}
}
