"""JavaScript by which several browser tests read a page."""

#: texts at an axis that are wider than their room
CUT = """return Array.from(document.querySelectorAll('[data-chart]')).flatMap(({ chart: { plot } }) => {
      const [below, beside] = plot.axes;
      plot.ctx.font = beside.font[0];
      const width = text => plot.ctx.measureText(text).width;
      const room = plot.bbox.width / (below._splits ?? []).length;
      return [...(below._values ?? []).filter(text => width(text) > room),
              ...(beside._values ?? []).filter(text => width(text) > plot.bbox.left)];
    })"""
#: of a page as the server sends it, the elements with a style of their own
STYLED = """const request = new XMLHttpRequest();
    request.open('GET', window.location.href, false);
    request.send();
    const page = new DOMParser().parseFromString(request.responseText, 'text/html');
    return Array.from(page.querySelectorAll('[style], style, script:not([src])'), one => one.outerHTML)"""
