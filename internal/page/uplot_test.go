package page

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"testing"
)

// uPlot's files are those of its package, unchanged.
func TestUPlotIsUnchanged(t *testing.T) {
	for name, want := range map[string]string{
		"uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
		"uPlot.min.css":     "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
		"LICENSE":           "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
	} {
		text, err := os.ReadFile("uplot/" + name)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(text)
		if have := hex.EncodeToString(sum[:]); have != want {
			t.Errorf("%s has the SHA-256 %s, not %s", name, have, want)
		}
	}
}
