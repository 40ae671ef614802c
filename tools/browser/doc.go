// Package browser tests Myriad's web pages in headless Chromium. It is a separate module, so that users of the library
// do not depend on the browser driver. It needs Chromium; on Debian, this is the package chromium.
package browser
