// Offer text to save as a file, without a network. A browser lets a page save nothing that a server has put into a sandbox, as
// Jupyter's does with /files, and does not say so: there the text opens, to be copied.
function download(text, type, name) {
  if (window.origin === "null" && !["file:", "about:"].includes(location.protocol)) return void openText(text, name);
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

function openText(text, name) {
  const [dialog, hint, area, close] = ["dialog", "p", "textarea", "button"].map((tag) => document.createElement(tag));
  hint.textContent = `This page cannot save files where it is open now. Copy the text into ${name}, or open the page's own file in the browser.`;
  Object.assign(area, { value: text, readOnly: true, rows: 20, ariaLabel: name });
  area.style.width = "100%";
  Object.assign(close, { textContent: "Close", onclick: () => dialog.close() });
  dialog.addEventListener("close", () => dialog.remove());
  dialog.append(hint, area, close);
  document.body.append(dialog);
  dialog.showModal();
  area.select();
}

