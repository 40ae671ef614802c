package procfs

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

const rlimits = `Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              unlimited            unlimited            seconds   
Max processes             96365                96366                processes 
Max open files            1024                 20000                files     
Max locked memory         8388608              unlimited            bytes     
Max nice priority         0                    0                    
`

func TestParseRlimits(t *testing.T) {
	got, err := parseRlimits([]byte(rlimits))
	want := Rlimits{Nofile: Rlimit{1024, 20000}, Memlock: Rlimit{8388608, -1}, Nproc: Rlimit{96365, 96366}}
	if err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for name, in := range map[string]string{
		"empty":        "",
		"a line less":  strings.Replace(rlimits, "Max open files", "Max files", 1),
		"short":        "Max open files 5\n",
		"not a number": strings.Replace(rlimits, "20000", "many ", 1),
		"negative":     strings.Replace(rlimits, "20000", "-1   ", 1),
	} {
		if got, err := parseRlimits([]byte(in)); err == nil {
			t.Errorf("%s: got %+v, want an error", name, got)
		}
	}
}

func FuzzParseRlimits(f *testing.F) {
	f.Add(uint32(1024), []byte(rlimits))
	f.Fuzz(func(t *testing.T, soft uint32, raw []byte) {
		if r, err := parseRlimits(raw); err == nil && min(r.Nofile.Soft, r.Nofile.Hard, r.Memlock.Soft, r.Memlock.Hard, r.Nproc.Soft, r.Nproc.Hard) < -1 {
			t.Errorf("%q: got %+v", raw, r)
		}
		in := strings.Replace(rlimits, "1024", fmt.Sprint(soft), 1)
		if r, err := parseRlimits([]byte(in)); err != nil || r.Nofile != (Rlimit{int64(soft), 20000}) {
			t.Errorf("%q: got %+v, %v", in, r, err)
		}
	})
}

func TestReadRlimits(t *testing.T) {
	onlyLinux(t)
	r, err := ReadRlimits(os.Getpid())
	if err != nil || r.Nofile.Soft < 3 && r.Nofile.Soft != -1 {
		t.Errorf("got %+v, %v", r, err)
	}
	if _, err := ReadRlimits(1 << 30); !Gone(err) {
		t.Errorf("no process: got %v, want an error that says gone", err)
	}
}
