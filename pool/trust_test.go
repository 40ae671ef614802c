package pool

import "testing"

func TestTrust(t *testing.T) {
	var tr trust
	good := 0
	tr.needs.Store(trustFrom)
	quick := func(n int) {
		for range n {
			tr.judge(true, 1, &good)
		}
	}
	quick(trustFrom - 1)
	if tr.quick() {
		t.Error("trusted too early")
	}
	quick(1)
	if !tr.quick() {
		t.Errorf("not trusted after %d quick jobs", trustFrom)
	}
	tr.judge(false, 1, &good)
	if tr.quick() {
		t.Error("trusted after a slow job")
	}
	if got := tr.needs.Load(); got != 2*trustFrom {
		t.Errorf("needs %d after one that was undeserved, want %d", got, 2*trustFrom)
	}
	tr.judge(false, 1, &good)
	if got := tr.needs.Load(); got != 2*trustFrom {
		t.Errorf("needs %d after a slow job without trust, want %d", got, 2*trustFrom)
	}
	for range 40 {
		quick(int(tr.needs.Load()))
		tr.judge(false, 1, &good)
	}
	if got := tr.needs.Load(); got != trustMost {
		t.Errorf("needs %d at most, want %d", got, trustMost)
	}
	quick(trustMost)
	for range 20 {
		quick(trustMore)
	}
	if got := tr.needs.Load(); got != trustFrom {
		t.Errorf("needs %d after it was deserved for long, want %d", got, trustFrom)
	}
}
