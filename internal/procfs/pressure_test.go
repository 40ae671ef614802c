package procfs

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"testing"
	"time"
)

const pressure = `some avg10=45.79 avg60=40.40 avg300=46.36 total=2917310063
full avg10=0.00 avg60=0.00 avg300=0.00 total=7
`

func TestParsePressure(t *testing.T) {
	got, err := parsePressure([]byte(pressure))
	if want := 2917310063 * time.Microsecond; err != nil || got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for name, in := range map[string]string{
		"empty":        "",
		"no line some": "full avg10=0.00 total=7\n",
		"no total":     "some avg10=0.00\nfull total=7\n",
		"not a number": "some total=many\n",
		"negative":     "some total=-1\n",
		"overflow":     "some total=9223372036854775807\n",
	} {
		if got, err := parsePressure([]byte(in)); err == nil {
			t.Errorf("%s: got %v, want an error", name, got)
		}
	}
}

// TestReadCPUPressure reads this machine's, which never goes back.
func TestReadCPUPressure(t *testing.T) {
	first, err := ReadCPUPressure()
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("a kernel without pressure stall information")
	}
	if runtime.GOOS != "linux" {
		if !errors.Is(err, ErrNotAvailable) {
			t.Errorf("got %v, want ErrNotAvailable", err)
		}
		return
	}
	if err != nil {
		t.Skipf("it may not be read here: %v", err) // some kernels say so, where it is turned off
	}
	if again, err := ReadCPUPressure(); err != nil || again < first {
		t.Errorf("got %v, %v after %v, want no less", again, err, first)
	}
}

func FuzzParsePressure(f *testing.F) {
	f.Add(uint32(2917310063), []byte(pressure))
	f.Add(uint32(0), []byte("some total=18446744073709551615"))
	f.Fuzz(func(t *testing.T, total uint32, raw []byte) {
		if got, err := parsePressure(raw); err == nil && got < 0 {
			t.Errorf("%q: negative: %v", raw, got)
		}
		in := fmt.Sprintf("full total=1\nsome avg10=0.00 total=%d\n", total)
		got, err := parsePressure([]byte(in))
		if want := time.Duration(total) * time.Microsecond; err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", in, got, err, want)
		}
	})
}
