// Package browser has the tests of what Myriad draws for people, in headless Chromium.
// It is a module of its own, so that what drives a browser never reaches users of the
// library. It needs Chromium: on Debian the package chromium.
package browser
