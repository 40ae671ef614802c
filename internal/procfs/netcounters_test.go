package procfs

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

func TestParseNetCounters(t *testing.T) {
	got, err := parseNetCounters([]byte("Tcp: MaxConn CurrEstab\nTcp: -1 17\nTcpExt: ListenOverflows\nTcpExt: 5\n"))
	want := map[string]int64{"TcpMaxConn": -1, "TcpCurrEstab": 17, "TcpExtListenOverflows": 5}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	many := "A:" + strings.Repeat(" %d", maxCounters+1)
	numbers := make([]any, maxCounters+1)
	for i := range numbers {
		numbers[i] = i
	}
	many = fmt.Sprintf(many, numbers...) + "\nA:" + strings.Repeat(" 1", maxCounters+1) + "\n"
	for name, in := range map[string]string{
		"empty":         "",
		"no numbers":    "Tcp: CurrEstab\n",
		"too few":       "Tcp: MaxConn CurrEstab\nTcp: 1\n",
		"another word":  "Tcp: CurrEstab\nUdp: 1\n",
		"no colon":      "Tcp CurrEstab\nTcp 1\n",
		"not a number":  "Tcp: CurrEstab\nTcp: many\n",
		"more than are": many,
	} {
		if got, err := parseNetCounters([]byte(in)); err == nil {
			t.Errorf("%s: got %d counters, want an error", name, len(got))
		}
	}
}

func FuzzParseNetCounters(f *testing.F) {
	f.Add(int64(5), []byte("Tcp: MaxConn CurrEstab\nTcp: -1 17\n"))
	f.Fuzz(func(t *testing.T, n int64, raw []byte) {
		if got, err := parseNetCounters(raw); err == nil && (len(got) == 0 || len(got) > maxCounters) {
			t.Errorf("%q: %d counters", raw, len(got))
		}
		got, err := parseNetCounters(fmt.Appendf(nil, "A: b c\nA: 1 %d\n", n))
		if err != nil || got["Ab"] != 1 || got["Ac"] != n {
			t.Errorf("%d: got %v, %v", n, got, err)
		}
	})
}

func TestReadNetCounters(t *testing.T) {
	onlyLinux(t)
	got, err := ReadNetCounters()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"TcpCurrEstab", "TcpExtListenOverflows", "TcpExtListenDrops"} {
		if n, ok := got[name]; !ok || n < 0 {
			t.Errorf("%s: got %d, %v", name, n, ok)
		}
	}
}
