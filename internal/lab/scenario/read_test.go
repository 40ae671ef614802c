package scenario

import "testing"

func TestX(t *testing.T) {
	r := Reader{Figures: func(string) (bool, bool) { return true, true }}
	for _, n := range BuiltIns() {
		if _, err := r.BuiltIn(n); err != nil {
			t.Error(n, err)
		}
	}
}
